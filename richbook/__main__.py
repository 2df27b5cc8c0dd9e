"""`python -m richbook` is the command `richbook`."""

from richbook.cli import main

raise SystemExit(main())
