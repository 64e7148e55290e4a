"""Bytes to events and back: git's long-running filter protocol and the control messages between client and daemon.

Sans-IO and standard library only; never imports theta_daemon.
"""
