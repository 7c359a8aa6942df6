"""What a model writes, taken apart: reasoning, text, tool calls. Deals in text; knows no request, model or server."""
