"""What other servers on the same database have done to the tree, the pools, the bans and the significant attributes."""

from __future__ import annotations

from pilotage_server.core.pool_mappings import PoolMappings
from pilotage_server.core.tree_in_force import TreeInForce
from pilotage_server.operations.bans import load_bans
from pilotage_server.operations.pools import exchange_mappings, mappings_in_force
from pilotage_server.operations.tree_loading import load_tree_in_force, take_tree
from pilotage_server.operations.unhurried import unhurried
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.pools import load_pools, pools_stamp
from pilotage_server.storage.significant_attributes import load_significant
from pilotage_server.storage.trees import version_in_force


def catch_up(unit: Unit, world: World) -> None:
    """Make the memory agree with the database; what the stamps say is as it was is not read again."""
    stamp = pools_stamp(unit.session)
    with world.lock:
        tree, bans, is_new = world.tree, world.bans, stamp != world.pools_stamp
    if version_in_force(unit.session) != tree.version:
        tree = load_tree_in_force(unit, unhurried)
    stored_bans = load_bans(unit)
    significant = load_significant(unit.session)
    with world.lock:
        # What this server itself has changed since the database was asked stays.
        same_reach = tree is world.tree and (stored_bans == bans or world.bans is not bans)
        world.significant |= significant
        if world.bans is bans:
            world.bans = stored_bans
    if is_new:
        same_reach &= _take_pools(unit, world, tree)
        world.pools_stamp = stamp
    take_tree(world, tree)
    if not same_reach:
        world.reach_changed()


def _take_pools(unit: Unit, world: World, tree: TreeInForce) -> bool:
    """Take in the mappings by `tree`; return whether all pools may run where they could."""
    with world.lock:
        known = {mapping.pool_id: mapping for mapping in world.mappings.all()}
    mappings = mappings_in_force(world, tree, load_pools(unit.session, unhurried), unhurried)
    changed = [mapping for mapping in mappings if known.get(mapping.pool_id) is not mapping]
    gone = known.keys() - {mapping.pool_id for mapping in mappings}
    if any(mapping.tree_version < tree.version for mapping in known.values()):  # then all of them change
        exchange_mappings(world, tree, PoolMappings(unhurried(mappings)))
    else:
        with world.lock:
            world.mappings.put(changed)
    with world.lock:
        world.mappings.remove(known[pool_id] for pool_id in gone)
    return all(each.pool_id in known and each.queues.is_same(known[each.pool_id].queues) for each in changed)
