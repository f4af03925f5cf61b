"""Makes the bundled demo pair from nothing: text, synthetic speech, training, draft, samples, tables.

Nothing here is needed to run the application. See README.md for the commands.
"""
