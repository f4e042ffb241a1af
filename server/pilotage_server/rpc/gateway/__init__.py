"""The HTTP gateway: the calls of users and operators as JSON over HTTP. It decides nothing and knows no operation."""
