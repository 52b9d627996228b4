"""The options of this plugin's models, and the masks they name."""
