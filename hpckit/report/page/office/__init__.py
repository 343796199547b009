"""A page document as a file of Word, PowerPoint or Excel, or as PDF. hpckit.cli imports a module of
it when such a file is asked for, since each needs a package of the extra `documents`."""
