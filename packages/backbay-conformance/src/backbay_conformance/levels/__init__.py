"""The levels, a module or a package each: what a backend must get right, from loading it up.

Each gives its cases by ``cases(device, all_samples=)``, for a device type.
"""
