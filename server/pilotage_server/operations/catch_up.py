"""What other servers on the same database have done to the tree, the pools, the bans and the significant attributes."""

from __future__ import annotations

from pilotage_server.operations.bans import load_bans
from pilotage_server.operations.pools import mappings_in_force
from pilotage_server.operations.tree_loading import load_tree_in_force, take_tree
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.pools import load_pools
from pilotage_server.storage.significant_attributes import load_significant
from pilotage_server.storage.trees import version_in_force


def catch_up(unit: Unit, world: World) -> None:
    """Make the memory agree with the database; of the mappings only those are worked out that have changed."""
    with world.lock:
        tree, bans = world.tree, world.bans
        known = {mapping.pool_id: mapping for mapping in world.mappings.all()}
    if version_in_force(unit.session) != tree.version:
        tree = load_tree_in_force(unit)
    mappings = mappings_in_force(world, tree, load_pools(unit.session))
    stored_bans = load_bans(unit)
    significant = load_significant(unit.session)
    with world.lock:
        # What this server itself has changed since the database was asked stays.
        same_bans = stored_bans == bans or world.bans is not bans
        same_reach = tree is world.tree and same_bans and all(known.get(each.pool_id) == each for each in mappings)
        take_tree(world, tree)
        world.significant |= significant
        world.mappings.put(mappings)
        world.mappings.remove(known[pool_id] for pool_id in known.keys() - {each.pool_id for each in mappings})
        if world.bans is bans:
            world.bans = stored_bans
    if not same_reach:
        world.reach_changed()
