"""How the package's annotations are checked while the tests run: an int will do for a float."""

from beartype import BeartypeConf, beartype

typechecker = beartype(conf=BeartypeConf(is_pep484_tower=True))
