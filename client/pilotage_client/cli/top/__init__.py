"""The command `top`: a screen with jobs, sites, pools, slots, pilots and owners, which refreshes itself.

`panes` reads and prints through the listings of the other commands; `app` is the screen, and needs the extra `tui`.
"""
