"""What holds for a family of models whichever engine runs its forward, and which engine does.

Knows configurations, the engines that exist and how they are checked; no arithmetic.
"""
