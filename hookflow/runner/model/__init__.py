"""What is known of networks by themselves: tasks, chosen modules and parameters, optimizers with modes."""
