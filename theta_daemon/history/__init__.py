"""Git's past and present: repositories, pointers by blob id, the index, and what remembers them when git does not."""
