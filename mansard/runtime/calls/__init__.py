"""The life of a call: admission, submission, completion, result."""
