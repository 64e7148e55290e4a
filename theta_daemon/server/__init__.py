"""The resident: sockets, signals, descriptors and the life of the process. Delete this folder and all still works, slower."""
