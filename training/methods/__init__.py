"""Methods of the field that were tried on the bundled models, a file each; figures in docs/methods/."""
