"""What people see: the live figures, the chat loop. The one place for rich and prompt_toolkit."""
