"""Raw text and labelled files to a corpus or to examples; needs no torch.

`errors`, `files`, `settings`, `json_values` and `redaction` are for everybody: all packages import them, and they
import nothing but each other. They lie here because this is the lowest package.
"""
