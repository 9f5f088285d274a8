"""Connections to nodes that cannot be dialled, through a member that both sides can dial.

`rendezvous` is the relay: it joins a caller's connection with one that the site opens. `relay_service` has its
calls, `relay_limits` its limits. `relayed_site` keeps a site registered at relays; `relay_caller` opens
connections to sites. What passes through a relay is TLS between caller and site.
"""
