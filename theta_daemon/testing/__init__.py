"""Contract tests that authors of plug-ins subclass. Needs pytest; nothing at run time imports it."""
