"""Files of weights as other programs write them: containers, headers and mapped bytes; no model's meaning."""
