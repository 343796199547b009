"""Plain Python values of a state as strict JSON and back: tags for what JSON cannot say, classes
that a program has registered, and what kind of container each branch of a state is. Imports
`errors` (and `dtypes` on first use, for torch's own types), and everything above the format may
import it."""
