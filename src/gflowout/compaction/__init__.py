"""Remove units that a mask leaves out: a smaller module with the answers of the masked one."""
