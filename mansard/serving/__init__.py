"""Language models over HTTP, as OpenAI's API has it: a Starlette application over a batch engine."""
