"""Facts on networks by themselves: tasks, chosen modules and parameters, optimizers with modes."""
