"""`python -m smolsessions`: the command line."""

from smolsessions.cli.main import main

if __name__ == "__main__":
    main()
