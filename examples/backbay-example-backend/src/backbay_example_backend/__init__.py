"""The torch.compile backend ``backbay-example-backend``; see `backend`.

Nothing is imported here, so that finding this package costs nothing.
"""
