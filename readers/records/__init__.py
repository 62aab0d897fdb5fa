"""Parse the fields inside a record: protobuf Example, Datum, msgpack."""
