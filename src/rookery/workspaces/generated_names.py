"""Generated names of workspaces: an adjective and an animal, such as `amber-otter`."""

from __future__ import annotations

from random import Random, SystemRandom

# Two words and a number fit into the 32 characters of a name.
_ADJECTIVES = """
    agile amber ample azure bold brave breezy bright brisk bronze calm candid cheery clever coral cosmic cozy
    crisp daring deft dusky eager early fair fancy fast fleet fond fresh gentle gilded glad golden grand green
    happy hardy hazel honest humble indigo ivory jade jolly keen kind lively loyal lucid lucky lunar mellow
    merry mighty misty modest neat nimble noble olive opal patient pearly placid plucky polite proud quick quiet
    rapid rosy ruby rustic sandy scarlet serene sharp shiny silent silver smart snowy soft solar solid sparkly
    spry steady sturdy sunny swift tidy topaz tranquil trusty velvet vivid warm wise witty young zesty
"""
ADJECTIVES = tuple(_ADJECTIVES.split())
_ANIMALS = """
    adder alpaca ant badger bat bear beaver bee beetle bison bobcat camel caribou cat cheetah cicada cobra
    condor coyote crab crane cricket crow deer dingo dolphin dove dragonfly eagle egret elk emu falcon ferret
    finch firefly fox gazelle gecko gibbon goose grouse gull hamster hare hawk hedgehog heron hornet ibex ibis
    iguana jackal jaguar jay kestrel kiwi koala lark lemur leopard lion lizard llama lynx macaw magpie manatee
    marmot marten meerkat mink mole moose moth mouse newt ocelot octopus oriole osprey otter owl panda panther
    parrot pelican penguin pigeon plover pony puffin puma quail rabbit raccoon raven robin salmon seal shark
    shrew sloth sparrow squid starling stork swallow swan tapir tern tiger toucan trout turtle viper vole walrus
    weasel whale wolf wombat wren yak zebra
"""
ANIMALS = tuple(_ANIMALS.split())
# After this many taken names, a number is added.
PLAIN_TRIES = 3

_random = SystemRandom()


def generate(attempt: int = 0, *, random: Random = _random) -> str:
    """Return a random name. From attempt 3 on it ends with a number, so that a free name is found soon."""
    name = f"{random.choice(ADJECTIVES)}-{random.choice(ANIMALS)}"
    return name if attempt < PLAIN_TRIES else f"{name}-{random.randrange(2, 10_000)}"
