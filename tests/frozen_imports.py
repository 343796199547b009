"""What the fork server imports last: all that is there by then stays out of garbage collection.

Nothing of it is garbage, and a collection in a child would write to all pages that children share.
"""

import gc

gc.freeze()
