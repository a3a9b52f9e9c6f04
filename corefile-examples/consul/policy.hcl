# What the owner's ACL token may do: `consul acl policy create -name federation-owner -rules @policy.hcl`.
# A node is read because the API tells of an instance only to who may read its node.
node_prefix "" {
  policy = "read"
}

# The services to publish, by name or by prefix.
service "web" {
  policy = "read"
}
service_prefix "shop-" {
  policy = "read"
}

# Consul's own service is in every list, so the owner can tell an empty list from a token that may read nothing.
service "consul" {
  policy = "read"
}
