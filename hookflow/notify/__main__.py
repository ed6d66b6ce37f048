"""The process that notifies."""

from hookflow.notify.process import main

if __name__ == "__main__":
    main()
