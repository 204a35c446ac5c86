"""``python -m grace_torchrec`` is the command ``grace-torchrec``."""

from grace_torchrec.cli.main import main

if __name__ == "__main__":
    main()
