"""Parameter shapes, activations, floating-point operations and pipeline stages of the models of
`conf/model/`. Imports config only."""
