"""What the plugin can do besides gates, scores, pruning and evaluation: a folder for each capability.

An extension imports the rest of the package, but no other extension; nothing else imports it. Its files have the same
names in every extension, by which `fairseq_headgates.load_extensions` finds them:

- `command.py`: the options of its command (no torch), `action.py`: what the command does
- `drawing.py`: its tables and figures (no torch), `templates/`: its web pages
- `plugin.py`: what it registers with fairseq
- `scores.py`: its importance scores, as entries of `analysis.options.SCORES` (no torch)

Deleting the folder, the folder of its tests and the page that its docstring names removes an extension.
"""
