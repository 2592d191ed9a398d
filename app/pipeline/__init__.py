"""The data plane: flow, lanes, budget, stages, retries, deliveries, transactions; its reports are for `web`.

Imports `deadletters` and the rooms below it.

To read it from top to bottom:

1. `service` keeps a `flow` running, and another one after a failure. A flow makes its parts, joins the group, and takes
   turns until it ends; it never mends itself.
2. A turn is one of `poll_loop`: it polls the partitions of which nothing waits, puts what was read into their `lane`s,
   and lets `admission` go over the lanes.
3. `admission` asks the `budget` for room. A batch of which no stage wants a record goes to the `delivery` as it is;
   another one is taken apart, and the `chain` is asked for each record. A record that passes goes to the `delivery`.
   With `lane_assembler`, chunks wait until their message is whole.
4. A record with work becomes an item of its lane. `dispatch` takes the steps that the chain plans (`work`, `stages`),
   with `retries` where they take time or call the store, until none is left. What fails goes by `error_policy`.
5. The front items of a lane leave in source order to the `delivery`: `output` writes them to the sink or the
   dead-letter topic, `offset_tracker` knows what is durable, and what a lane may commit is committed: at least once in
   regular commits, exactly once in the `transaction` of the lane.
6. `committed_offsets` and `offset_reset` find where reading begins. `topic_watcher` and `learned_limits` notice topics
   that are not as planned any more: the flow ends, and the next one goes by what they are then.
"""
