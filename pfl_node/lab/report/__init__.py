"""What an experiment found, for people: tables, plots and one page. Imports no torch; only `style.py` knows how to
load matplotlib."""
