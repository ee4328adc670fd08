"""The backends that ship: found through the registry, by name, like anyone's."""
