"""Fields inside a record: protobuf Example, Datum, msgpack."""
