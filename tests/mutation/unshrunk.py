"""A plugin of pytest: a generated test that fails is not made smaller, which takes minutes; it only fails."""

from hypothesis import Phase, settings

# Profiles that are registered later inherit this.
settings.register_profile("unshrunk", phases=(Phase.explicit, Phase.reuse, Phase.generate))
settings.load_profile("unshrunk")
