"""The on-disk format of a dump: schema, writer, reader."""
