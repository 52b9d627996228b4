"""Optional capabilities, one folder each.

An extension imports the rest of the package, but no other extension; nothing else imports it. The package finds these
files of an extension by their names (`load_extensions`):

- `command.py`: its command
- `plugin.py`: what it registers with fairseq
- `api.py`: its public names, as `fairseq_headgates.FOLDER`
- `result.py`: `RESULTS`, by the format of its files the functions that turn them into tables and figures for a report

By convention, `drawing.py` has its tables and figures (no torch), and `templates/` its web pages. Deleting the folder
and the folder of its tests removes an extension; the page that its docstring names describes it.
"""
