"""The work of `specli layers`: which layers a model's own draft can do without.

Self-speculation by layer skipping, after LayerSkip (Elhoushi et al. 2024) and SWIFT (Xia et al. 2024,
which searches the layers on the user's own text, without training).
"""
