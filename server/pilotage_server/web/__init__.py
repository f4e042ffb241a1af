"""The web page of a server: pages for browsers, on the HTTP gateway.

A view is one function and one template (`views/`); `routes.PAGE_VIEWS` lists them. It gets what it shows by the calls
that scripts make over HTTP, with the token of its visitor, the same access checks and the same limits. It must not
import operations or storage.
"""
