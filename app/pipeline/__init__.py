"""The data plane: flow, lanes, budget, transforms, retries, deliveries, transactions; its reports are for `web`.

Imports `deadletters` and the packages below it.

To read it from top to bottom:

1. `service` keeps a `flow` running, and another one after a failure. A flow makes its parts, joins the group, and takes
   turns until it ends; it never repairs itself.
2. A turn is one of `poll_loop`: it polls the partitions of which nothing waits, puts what was read into their `lane`s,
   and lets `admission` go over the lanes.
3. `admission` asks the `budget` for room. A batch of which no transform needs a record is forwarded whole to the
   `delivery`; any other one is decoded, and the `chain` decides about each record. Records that pass go to `delivery`.
   With `lane_assembler`, chunks wait until their message is whole.
4. A record with work becomes an item of its lane. `dispatch` takes the steps that the chain plans (`work`, `stages`),
   with `retries` where they take time or call the store, until none is left. What fails goes by `error_policy`.
5. The front items of a lane leave in source order to the `delivery`: `output` writes them to the output topic
   or the dead letter queue, `offset_tracker` knows what is durable, and what a lane may commit is committed: at least
   once in regular commits, exactly once in the `transaction` of the lane.
6. `committed_offsets` and `offset_reset` find where reading begins. `topic_watcher` and `learned_limits` notice topics
   that are not as planned any more: the flow ends, and the next one goes by what they are then.
"""
