"""Whether a process lives, and since when."""


def read_start_time(pid: int) -> float | None:
    """Return when the process of a pid has started, by the system's clock.

    It is None where none lives.
    """
    import psutil  # takes as long as to list 1,000 runs, which need it seldom

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else process.create_time()
    except (psutil.Error, ValueError, OverflowError):  # the last two: it is no pid
        return None
