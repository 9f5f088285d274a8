"""The report of an experiment: tables, plots and a page. Only `style.py` loads matplotlib."""
