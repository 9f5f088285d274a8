"""How a new site becomes a member: the operator's token, the site's request, the CA's answer.

The bootstrap keeps invitations and passes requests and answers on; the CA's key stays with the operator. Modules
that the bootstrap imports load neither numpy, torch, pydantic nor cryptography.
"""
