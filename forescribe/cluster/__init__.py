"""Many machines by Ray: the workers of `transcribe --cluster`.

    forescribe transcribe calls -r -o out --cluster ray://head:10001

`ray_connection` and `ray_fleet` call Ray, and import it inside of functions. The rest knows workers and
recordings and nothing of Ray, and is tested without it.
"""
