"""How an exported program is called: its arguments and results, and their structure."""
