"""What a file from a stranger may hold: objects that may be loaded, options that may be acted on."""
